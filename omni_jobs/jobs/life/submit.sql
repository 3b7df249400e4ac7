-- insert_jobs_unless_there: writes jobs. One whose id or idempotency key is there already is left out.
-- postgresql
INSERT INTO jobs (id, pipeline, pipeline_version, pipeline_digest, modalities, request, request_digest,
                  idempotency_key, media, metadata, seed, tenant, priority, cost, deadline, created_at,
                  state, retries, payloads_gone, inputs_gone, artifacts_gone)
SELECT given.*, 'queued', 0, false, false, false
FROM {rows} AS given(id text, pipeline text, pipeline_version text, pipeline_digest text, modalities text, request text,
                     request_digest text, idempotency_key text, media text, metadata text, seed bigint, tenant text,
                     priority text, cost double precision, deadline double precision,
                     created_at double precision)
ON CONFLICT DO NOTHING
RETURNING 1
-- sqlite
INSERT INTO jobs (id, pipeline, pipeline_version, pipeline_digest, modalities, request, request_digest,
                  idempotency_key, media, metadata, seed, tenant, priority, cost, deadline, created_at,
                  state, retries, payloads_gone, inputs_gone, artifacts_gone)
VALUES (:id, :pipeline, :pipeline_version, :pipeline_digest, :modalities, :request, :request_digest,
        :idempotency_key, :media, :metadata, :seed, :tenant, :priority, :cost, :deadline, :created_at,
        'queued', 0, 0, 0, 0)
ON CONFLICT DO NOTHING

-- insert_labels_unless_there: writes the labels of jobs, by which lists find them.
-- postgresql
INSERT INTO job_labels (label, tenant, job_id)
SELECT given.* FROM {rows} AS given(label text, tenant text, job_id text)
ON CONFLICT DO NOTHING
RETURNING 1
-- sqlite
INSERT INTO job_labels (label, tenant, job_id) VALUES (:label, :tenant, :job_id)
ON CONFLICT DO NOTHING

-- insert_stage_runs_unless_there: writes the stage runs of jobs.
-- postgresql
INSERT INTO stage_runs (job_id, position, pipeline, pipeline_digest, stage, queue, inputs, has_successors, retries,
                        queue_limit_s, is_high, state, turn, queued_at, due, queue_deadline, reason, attempt,
                        payload_gone)
SELECT given.*, 0, false
FROM {rows} AS given(job_id text, position integer, pipeline text, pipeline_digest text, stage text, queue text,
                     inputs text, has_successors boolean, retries text, queue_limit_s double precision, is_high boolean,
                     state text, turn bigint, queued_at double precision, due double precision,
                     queue_deadline double precision, reason text)
ON CONFLICT DO NOTHING
RETURNING 1
-- sqlite
INSERT INTO stage_runs (job_id, position, pipeline, pipeline_digest, stage, queue, inputs, has_successors, retries,
                        queue_limit_s, is_high, state, turn, queued_at, due, queue_deadline, reason, attempt,
                        payload_gone)
VALUES (:job_id, :position, :pipeline, :pipeline_digest, :stage, :queue, :inputs, :has_successors, :retries,
        :queue_limit_s, :is_high, :state, :turn, :queued_at, :due, :queue_deadline, :reason, 0, 0)
ON CONFLICT DO NOTHING

-- insert_keeping_jobs_unless_there: notes jobs that keep their payloads.
-- postgresql
INSERT INTO keeping_jobs (job_id) SELECT * FROM {rows} AS given(job_id text)
ON CONFLICT DO NOTHING
RETURNING 1
-- sqlite
INSERT INTO keeping_jobs (job_id) VALUES (:job_id) ON CONFLICT DO NOTHING

-- insert_traced_jobs_unless_there: notes the traces of jobs.
-- postgresql
INSERT INTO traced_jobs (job_id, traceparent) SELECT given.* FROM {rows} AS given(job_id text, traceparent text)
ON CONFLICT DO NOTHING
RETURNING 1
-- sqlite
INSERT INTO traced_jobs (job_id, traceparent) VALUES (:job_id, :traceparent) ON CONFLICT DO NOTHING
