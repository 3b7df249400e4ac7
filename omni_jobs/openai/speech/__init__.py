"""Speech of OpenAI's API: a job that makes sound of a text."""
