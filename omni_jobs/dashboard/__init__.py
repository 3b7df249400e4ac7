"""The dashboard: pages of HTML over the same services as the API. Each page has a file of its own noun.

A page is whole as the server renders it, so that it can be read without JavaScript. A *fragment* of it is rendered
again as the page polls. ``navigation`` and ``routes`` name the pages, ``visit`` answers with them, and ``page_route``
makes pages of errors.
"""
