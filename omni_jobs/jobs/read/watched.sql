-- watch: notes that jobs are watched for some seconds from now on.
-- postgresql
INSERT INTO watched_jobs (job_id, since, until)
SELECT value, {now}, {now} + CAST(:seconds AS double precision)
FROM json_array_elements_text(CAST(:ids AS json)) AS value
ORDER BY value
ON CONFLICT (job_id) DO UPDATE SET until = excluded.until
RETURNING 1
-- sqlite
INSERT INTO watched_jobs (job_id, since, until)
SELECT value, {now}, {now} + CAST(:seconds AS double precision) FROM json_each(:ids) WHERE true
ON CONFLICT (job_id) DO UPDATE SET until = excluded.until
RETURNING 1

-- pieces: reads what attempts have written behind the characters that the reader has.
-- postgresql
SELECT piece.stage_run_id, piece.attempt, piece.start, piece.text
FROM json_to_recordset(CAST(:wanted AS json)) AS given(job text, run bigint, attempt integer, have integer)
JOIN text_pieces AS piece
    ON piece.job_id = given.job AND piece.stage_run_id = given.run AND piece.attempt = given.attempt
    AND piece.stop > given.have
ORDER BY piece.stage_run_id, piece.start
-- sqlite
SELECT piece.stage_run_id, piece.attempt, piece.start, piece.text
FROM json_each(:wanted) AS given
JOIN text_pieces AS piece
    ON piece.job_id = json_extract(given.value, '$.job') AND piece.stage_run_id = json_extract(given.value, '$.run')
    AND piece.attempt = json_extract(given.value, '$.attempt') AND piece.stop > json_extract(given.value, '$.have')
ORDER BY piece.stage_run_id, piece.start

-- unwatched: jobs that nobody has watched for some seconds.
SELECT job_id FROM watched_jobs WHERE until < {now} - CAST(:seconds AS double precision) ORDER BY until, job_id LIMIT 500
