-- first_turn: the lowest turn of a stage's line.
SELECT turn FROM stage_runs
WHERE pipeline = :pipeline AND stage = :stage AND pipeline_digest = :pipeline_digest AND state = 'queued' AND due <= {now}
ORDER BY turn LIMIT 1

-- claimed_turn: how far the pipeline's workers have got.
SELECT max(turn) FROM workers WHERE pipeline = :pipeline

-- highest_turn: the highest turn that was given in the pipeline.
-- postgresql
SELECT greatest(
    (SELECT max(greatest(normal, low)) FROM turns WHERE pipeline = :pipeline),
    (SELECT max(greatest(normal, low)) FROM quota_turns WHERE pipeline = :pipeline))
-- sqlite
SELECT max(turn) FROM (
    SELECT max(max(normal, low)) AS turn FROM turns WHERE pipeline = :pipeline
    UNION ALL
    SELECT max(max(normal, low)) FROM quota_turns WHERE pipeline = :pipeline)
