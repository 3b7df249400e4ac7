-- insert_garbage: notes objects to delete.
-- postgresql
INSERT INTO garbage (owner, what) SELECT * FROM {rows} AS given(owner text, what text)
RETURNING 1
-- sqlite
INSERT INTO garbage (owner, what) VALUES (:owner, :what)
