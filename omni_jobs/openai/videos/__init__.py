"""Videos of OpenAI's API: a job for each, for which its client comes back."""
