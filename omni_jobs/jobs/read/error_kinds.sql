-- newest: reads the newest error of each kind at a time or before, of a tenant's jobs or of all ('').
-- postgresql
SELECT line.fingerprint, found.error, run.job_id, run.pipeline, run.stage
FROM json_to_recordset(CAST(:lines AS json)) AS line(fingerprint text, until double precision)
CROSS JOIN LATERAL (
    SELECT stage_run_id, error FROM attempt_errors
    WHERE fingerprint = line.fingerprint AND at <= line.until AND (:tenant = '' OR tenant = :tenant)
    ORDER BY at DESC LIMIT 1
) AS found
JOIN stage_runs AS run ON run.id = found.stage_run_id
-- sqlite
SELECT found.fingerprint, found.error, run.job_id, run.pipeline, run.stage
FROM json_each(:lines) AS line
CROSS JOIN attempt_errors AS found ON found.rowid = (
    SELECT rowid FROM attempt_errors
    WHERE fingerprint = json_extract(line.value, '$.fingerprint') AND at <= json_extract(line.value, '$.until')
        AND (:tenant = '' OR tenant = :tenant)
    ORDER BY at DESC LIMIT 1
)
CROSS JOIN stage_runs AS run ON run.id = found.stage_run_id
