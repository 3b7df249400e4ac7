"""Transcriptions of OpenAI's API: a job that makes text of a recording."""
