-- added: the sums of what a row had and what comes.
attempts = usage_days.attempts + excluded.attempts, worker_s = usage_days.worker_s + excluded.worker_s,
device_s = usage_days.device_s + excluded.device_s,
prompt_tokens = usage_days.prompt_tokens + excluded.prompt_tokens,
completion_tokens = usage_days.completion_tokens + excluded.completion_tokens,
heard_s = usage_days.heard_s + excluded.heard_s, sound_s = usage_days.sound_s + excluded.sound_s,
pictures = usage_days.pictures + excluded.pictures, frames = usage_days.frames + excluded.frames

-- add_usage: adds to what tenants have used.
-- postgresql
INSERT INTO usage_days (tenant, day, pipeline, stage, part, attempts, worker_s, device_s, prompt_tokens,
                        completion_tokens, heard_s, sound_s, pictures, frames)
SELECT * FROM {rows} AS given(
    tenant text, day integer, pipeline text, stage text, part integer, attempts double precision,
    worker_s double precision, device_s double precision, prompt_tokens double precision,
    completion_tokens double precision, heard_s double precision, sound_s double precision, pictures double precision,
    frames double precision
)
ON CONFLICT (tenant, day, pipeline, stage, part) DO UPDATE
SET {added}
RETURNING 1
-- sqlite
INSERT INTO usage_days (tenant, day, pipeline, stage, part, attempts, worker_s, device_s, prompt_tokens,
                        completion_tokens, heard_s, sound_s, pictures, frames)
VALUES (:tenant, :day, :pipeline, :stage, :part, :attempts, :worker_s, :device_s, :prompt_tokens,
        :completion_tokens, :heard_s, :sound_s, :pictures, :frames)
ON CONFLICT (tenant, day, pipeline, stage, part) DO UPDATE
SET {added}
