-- insert_garbage: notes objects to delete.
-- postgresql
INSERT INTO garbage (job_id, what) SELECT * FROM {rows} AS given(job_id text, what text)
RETURNING 1
-- sqlite
INSERT INTO garbage (job_id, what) VALUES (:job_id, :what)
