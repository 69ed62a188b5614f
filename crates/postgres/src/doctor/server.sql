-- One row: version, settings and state of the server, for a session of this role.
SELECT
    current_setting('server_version') AS version,
    current_setting('server_version_num') AS version_number,
    current_user AS role,
    (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) AS superuser,
    current_setting('fsync') = 'on' AS fsync,
    current_setting('full_page_writes') = 'on' AS full_page_writes,
    -- The value at the start of the session: the store may have set another since.
    (SELECT reset_val FROM pg_settings WHERE name = 'synchronous_commit') AS synchronous_commit,
    current_setting('synchronous_standby_names') AS synchronous_standby_names,
    (SELECT count(*) FROM pg_stat_replication) AS standbys,
    -- Null for a role that may not see the state of standbys.
    (SELECT sum((sync_state IN ('sync', 'quorum'))::integer)
        FROM pg_stat_replication) AS synchronous,
    current_setting('autovacuum') = 'on' AND current_setting('track_counts') = 'on' AS autovacuum,
    (SELECT sum(numbackends) FROM pg_stat_database) AS connections,
    current_setting('max_connections') AS connections_max,
    coalesce(inet_client_addr() = inet_server_addr(), true) AS local,
    (SELECT version FROM pg_stat_ssl WHERE pid = pg_backend_pid() AND ssl) AS tls
