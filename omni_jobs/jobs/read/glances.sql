-- states: reads the states of jobs.
SELECT id, state FROM jobs WHERE id {names}

-- runs: reads the stage runs of jobs in their order, with the progress of those that run.
SELECT job_id, id, stage, state, attempt, CASE WHEN state = 'running' THEN progress END
FROM stage_runs WHERE job_id {names} ORDER BY job_id, position
