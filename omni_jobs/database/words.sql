-- The words that every statement may use as {name}. omni_jobs.database.statement explains the form of these files.
-- On PostgreSQL lists become arrays, because the planner may scan a table for a join, or for a list whose length it does
-- not know. "state || ''" in a statement is a guard on rows that are found by their ids: no index serves it, because by
-- statistics that lag behind a queue the index of a state looks short.

-- now: the time in seconds since 1970 by the database's clock; one time for a whole statement.
-- It is not clock_timestamp(), because no index serves a comparison with a volatile function, nor unixepoch('subsec'),
-- which is younger than Debian 12's SQLite.
-- postgresql
extract(epoch from statement_timestamp())::double precision
-- sqlite
((julianday('now') - 2440587.5) * 86400.0)

-- ids: is one of the numbers of the JSON list ":ids".
-- postgresql
= ANY (ARRAY(SELECT value::bigint FROM json_array_elements_text(CAST(:ids AS json))))
-- sqlite
IN (SELECT value FROM json_each(:ids))

-- names: is one of the strings of the JSON list ":ids".
-- postgresql
= ANY (ARRAY(SELECT value FROM json_array_elements_text(CAST(:ids AS json))))
-- sqlite
IN (SELECT value FROM json_each(:ids))

-- keys: is one of the keys of a bulk statement's rows, which are numbers.
-- postgresql
= ANY (ARRAY(SELECT value::bigint FROM json_array_elements_text(CAST(:keys AS json))))

-- key_names: is one of the keys of a bulk statement's rows, which are strings.
-- postgresql
= ANY (ARRAY(SELECT value FROM json_array_elements_text(CAST(:keys AS json))))
-- sqlite
IN (SELECT value FROM json_each(:keys))

-- rows: the rows of a bulk statement, as a table.
-- postgresql
json_to_recordset(CAST(:rows AS json))

-- jobs_of_runs: the jobs of the stage runs whose ids are the numbers of the JSON list ":ids".
SELECT job_id FROM stage_runs WHERE id {ids}

-- lock: keeps rows as they are until the transaction's end. On SQLite a writer has the whole file to itself.
-- postgresql
FOR NO KEY UPDATE
-- sqlite

-- lock_free_runs: the same of those rows of "run" that nobody has locked; the others are left out.
-- postgresql
FOR UPDATE OF run SKIP LOCKED
-- sqlite
