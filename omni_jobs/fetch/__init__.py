"""The outgoing connection: how this platform speaks to a host that a client, or a remote server's answer, names.

Such a name is a wish of a stranger's. So only hosts of the internet are spoken to, at the very address that was
checked, and what they send is bounded in bytes and in time while it comes. What operators name themselves, such as the
database or a remote stage's server, does not go through here.
"""
