"""Chaos: real processes under seeded faults, clients that keep a log, and a checker that believes neither.

python -m tests.chaos --database postgresql --pipeline echo --seed 1 --minutes 5

processes   what runs, and the supervisor that restarts what dies
proxy       stands before PostgreSQL and S3, and cuts, delays or spoils what passes
stack       the services, two API servers, two rescuers, two workers a stage
clients     submit, poll, cancel, retry and fork over HTTP; remember what they were told
stock_clients  OpenAI's own clients: chat, responses and videos, also in streams and in the background
faults      one class a kind
recovery    how long the work of a killed worker waits
checker     reads SQL and the object store in its own words, and compares
"""
