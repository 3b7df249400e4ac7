-- insert_piece_if_watched: keeps pieces of text, of jobs that are watched. One that is written again may be longer.
-- The lock makes it wait for whoever removes the row of the job, and find it gone then.
-- postgresql
INSERT INTO text_pieces (job_id, stage_run_id, attempt, start, stop, text)
SELECT watched.job_id, given.stage_run, given.attempt, given.start, given.stop, given.text
FROM {rows} AS given(stage_run bigint, attempt integer, start integer, stop integer, text text)
JOIN stage_runs AS run ON run.id = given.stage_run
JOIN watched_jobs AS watched ON watched.job_id = run.job_id
FOR KEY SHARE OF watched
ON CONFLICT (job_id, stage_run_id, attempt, start) DO UPDATE
SET stop = excluded.stop, text = excluded.text WHERE text_pieces.stop < excluded.stop
RETURNING 1
-- sqlite
INSERT INTO text_pieces (job_id, stage_run_id, attempt, start, stop, text)
SELECT watched.job_id, :stage_run, :attempt, :start, :stop, :text
FROM stage_runs AS run JOIN watched_jobs AS watched ON watched.job_id = run.job_id
WHERE run.id = :stage_run
ON CONFLICT (job_id, stage_run_id, attempt, start) DO UPDATE
SET stop = excluded.stop, text = excluded.text WHERE text_pieces.stop < excluded.stop
