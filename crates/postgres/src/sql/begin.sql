-- Isolation and access are said here, because a role may have other defaults.
BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE
