"""``ClientMethods``: the calls as methods of both clients. No call is written or described a second time.

``Client.submit`` and ``AsyncClient.submit`` are one attribute, whose type tells a type checker which client returns the
view and which has to be awaited. At runtime it makes an ordinary function for each class, with the call's docstring.
"""

from __future__ import annotations

import inspect
import ssl
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, overload

from omni_jobs.client.calls import Calls, LinesT
from omni_jobs.client.connection import ConnectionOptions, connection_options
from omni_jobs.client.steps import Items, Steps
from omni_jobs.servers import without_user

if TYPE_CHECKING:
    from omni_jobs.client.async_client import AsyncClient
    from omni_jobs.client.client import Client

P = ParamSpec("P")
T = TypeVar("T")


class _Method:
    """A method of each client that runs a call."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call
        self._of_class: dict[type, Any] = {}

    def _bound(
        self,
        client: object | None,
        owner: type,
        method_of: Callable[[Callable[..., Any]], Callable[..., Any]],
        returned: str,
    ) -> Any:
        """Return the method of a client, or of its class if there is no client.

        ``method_of`` makes it of the call, and ``returned`` is what its signature says it gives.
        """
        if inspect.isabstract(owner):
            return self._call
        method: Any = self._of_class.get(owner)
        if method is None:
            method = method_of(self._call)
            method.__name__, method.__doc__ = self._call.__name__, self._call.__doc__
            method.__qualname__ = f"{owner.__name__}.{method.__name__}"
            signature = inspect.signature(self._call)
            inside = str(signature.return_annotation).partition("[")[2].removesuffix("]")
            method.__signature__ = signature.replace(return_annotation=returned.format(inside))
            self._of_class[owner] = method
        return method if client is None else method.__get__(client)


class Returning(_Method, Generic[P, T]):
    """A method that returns the result of a call; AsyncClient's is awaited."""

    def __init__(self, call: Callable[Concatenate[Any, P], Steps[T]]) -> None:
        super().__init__(call)

    @overload
    def __get__(self, client: None, owner: type) -> Callable[Concatenate[Any, P], Any]: ...
    @overload
    def __get__(self, client: Client, owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, client: AsyncClient, owner: type) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, client: object, owner: type[ClientMethods[Any]]) -> Any:
        return self._bound(client, owner, owner._returning, "{}")


class Yielding(_Method, Generic[P, T]):
    """A method that gives the items of a call one after the other; AsyncClient's is read with ``async for``."""

    def __init__(self, call: Callable[Concatenate[Any, P], Items[T]]) -> None:
        super().__init__(call)

    @overload
    def __get__(self, client: None, owner: type) -> Callable[Concatenate[Any, P], Any]: ...
    @overload
    def __get__(self, client: Client, owner: type) -> Callable[P, Iterator[T]]: ...
    @overload
    def __get__(self, client: AsyncClient, owner: type) -> Callable[P, AsyncIterator[T]]: ...
    def __get__(self, client: object, owner: type[ClientMethods[Any]]) -> Any:
        return self._bound(client, owner, owner._yielding, owner._ITERATOR + "[{}]")


class ClientMethods(ABC, Generic[LinesT]):
    """What both clients have: where the server is, and the methods. ``Client`` and ``AsyncClient`` run them."""

    _ITERATOR = "Iterator"  # the name of the type of what a method returns that yields

    submit = Returning(Calls.submit)
    submit_bulk = Yielding(Calls[LinesT].submit_bulk)
    pipelines = Returning(Calls.pipelines)
    set_paused = Returning(Calls.set_paused)
    set_drained = Returning(Calls.set_drained)
    pipeline_versions = Returning(Calls.pipeline_versions)
    set_draining = Returning(Calls.set_draining)
    status = Returning(Calls.status)
    scaling = Returning(Calls.scaling)
    calibrations = Returning(Calls.calibrations)
    get = Returning(Calls.get)
    list = Returning(Calls.list)
    events = Returning(Calls.events)
    stream = Yielding(Calls.stream)
    cancel = Returning(Calls.cancel)
    retry = Returning(Calls.retry)
    fork = Returning(Calls.fork)
    advance = Returning(Calls.advance)
    delete = Returning(Calls.delete)
    cancel_all = Returning(Calls.cancel_all)
    retry_all = Returning(Calls.retry_all)
    advance_all = Returning(Calls.advance_all)
    delete_all = Returning(Calls.delete_all)
    usage = Returning(Calls.usage)
    wait = Returning(Calls.wait)
    watch = Yielding(Calls.watch)
    artifact = Returning(Calls.artifact)
    artifact_chunks = Yielding(Calls.artifact_chunks)
    save_artifact = Returning(Calls.save_artifact)
    save = Returning(Calls.save)

    def __init__(
        self,
        base_url: str | None = None,
        *,
        api_key: str | None = None,
        timeout: float = 30.0,
        ca_file: str | Path | None = None,
    ) -> None:
        """Prepare calls to the server at ``base_url``; by default OMNI_JOBS_URL, else http://127.0.0.1:8000.

        ``api_key`` goes with each call; by default OMNI_JOBS_API_KEY, or the content of the file that
        OMNI_JOBS_API_KEY_FILE names, else none. A try of a call fails after ``timeout`` seconds of silence.
        ``ca_file``: certificates (PEM) to trust in place of the system's, for a server with a private authority; by
        default OMNI_JOBS_CA_FILE. Raises ConfigError for a URL that is not http, a key that cannot be read or sent, and
        a file that holds no certificates.
        """
        options = connection_options(base_url, api_key, timeout, ca_file)
        self._trusted: ssl.SSLContext | bool = options["verify"]
        self.base_url = options["base_url"]
        self._shown_url = without_user(self.base_url)  # in errors
        self._timeout_s = timeout
        self._calls = Calls[LinesT](timeout)
        self._connect(options)

    @abstractmethod
    def _connect(self, options: ConnectionOptions) -> None:
        """Make the pool of connections, which opens none yet."""

    @staticmethod
    @abstractmethod
    def _returning(call: Callable[..., Steps[Any]]) -> Callable[..., Any]:
        """Return the method that runs a call and gives its result."""

    @staticmethod
    @abstractmethod
    def _yielding(call: Callable[..., Items[Any]]) -> Callable[..., Any]:
        """Return the method that runs a call and gives its items."""
