"""Responses of OpenAI's API: a job that answers text, which its client waits for, streams, or comes back for.

parameters → request (of input) → a chat completion's request
answer, input_items: what a job shows as a response
numbers → stream: its events, which any server takes up anywhere, because each number is a function of the job
"""
