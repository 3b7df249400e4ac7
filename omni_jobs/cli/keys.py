"""The commands for API keys. They change the database itself, so that the first key needs no key."""

from omni_jobs.cli import options
from omni_jobs.cli.exits import act_on_each
from omni_jobs.cli.screen import show, show_json
from omni_jobs.cli.servers import opened_database
from omni_jobs.cli.terminal import say

_DAY_S = 86_400.0


def create(
    tenant: options.TenantOption,
    scope: options.ScopesOption,
    name: options.KeyNameOption = None,
    expires_in_days: options.ExpiresOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Make an API key of a tenant, and print it. Nothing can show it again: keep it where secrets are kept.

    Scopes: submit (submit, cancel, retry, delete jobs), read (jobs, results, status), files, webhooks, and admin, which
    may do all of it and sees the load of all tenants.

    \b
    Examples:
      omni-jobs keys create --tenant acme --scope submit --scope read > acme.key
      omni-jobs keys create --tenant acme --scope read --name dashboard --expires-in-days 90 --json
    """
    from omni_jobs.tenants.key_store import ApiKeys

    life_s = None if expires_in_days is None else expires_in_days * _DAY_S
    with opened_database() as database:
        made = ApiKeys(database).create(tenant, scope, name=name, expires_in_s=life_s)
    if as_json:
        show_json(made)
    else:
        say(made.key)
        say(f"{made.id}, of tenant {made.tenant}, may {', '.join(made.scopes)}", err=True)


def list_(tenant: options.OfTenantOption = None, as_json: options.JsonOption = False) -> None:
    """List the API keys, the oldest first: each with its first characters, and when it was last used (to the hour).

    \b
    Examples:
      omni-jobs keys list
      omni-jobs keys list --tenant acme --json
    """
    from omni_jobs.cli.tables import moment, table_of
    from omni_jobs.tenants.key_store import ApiKeys

    with opened_database() as database:
        keys = ApiKeys(database).all(tenant)
    rows = (
        (
            *(key.id, key.tenant, key.name or "", f"{key.hint}…", ", ".join(key.scopes)),
            *map(moment, (key.created_at, key.used_at, key.expires_at, key.revoked_at)),
        )
        for key in keys
    )
    titles = ("id", "tenant", "name", "key", "scopes", "created", "used", "expires", "revoked")
    show(keys, as_json, lambda _: table_of(*titles, rows=rows))


def revoke(keys: options.KeysArgument) -> None:
    """Revoke API keys. Every API server refuses them within 5 seconds. This cannot be undone.

    A key that does not exist is named, and the others are revoked.

    \b
    Example:
      omni-jobs keys revoke key-0f3a9c21b7d45e68
    """
    from omni_jobs.tenants.key_store import ApiKeys

    with opened_database() as database:
        act_on_each(keys, ApiKeys(database).revoke)
