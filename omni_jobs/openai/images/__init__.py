"""Pictures of OpenAI's API, drawn or made of others: a job for each."""
