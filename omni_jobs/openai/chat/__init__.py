"""Chat completions of OpenAI's API: a job for each choice, for which its client waits, or whose text it streams."""
