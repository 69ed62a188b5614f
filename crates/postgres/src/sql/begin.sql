-- Isolation and access mode are explicit, because a role may have other defaults.
BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE
