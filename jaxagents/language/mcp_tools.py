"""Tools of MCP servers (Model Context Protocol) for conversations; needs the extra `mcp`."""

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from functools import cache, partial
from typing import Any

from jaxagents.language.tool_calls import Tool


def mcp_tools(
    *,
    command: Sequence[str] | None = None,
    url: str | None = None,
    names: Sequence[str] | None = None,
    seconds: float = 30.0,
) -> list[Tool]:
    """Connects to an MCP server, and returns its tools.

    One connection serves all environments and conversations of this process, and ends with it.

    Args:
        command: that starts a server which speaks on its standard streams, such as `[python, my_server.py]`.
        url: of a server that is there, by streamable HTTP; either this or `command`.
        names: of the tools to take; None takes all.
        seconds: that connecting may take.

    Returns:
        The tools, with the server's descriptions and schemas. What a call returns is its text; a part that is no text,
        such as an image, is named in brackets. An error of the server fails the call.

    Raises:
        ValueError: neither or both of `command` and `url`, no connection, or a name that the server does not have.

    References:
        Model Context Protocol, modelcontextprotocol.io.
    """
    if (command is None) == (url is None):
        raise ValueError(f"`command` or `url` must be given, got {command!r} and {url!r}.")
    loop, client, found = _connect(None if command is None else tuple(map(str, command)), url, seconds)
    known = {one.name: one for one in found}
    if missing := [name for name in names or () if name not in known]:
        raise ValueError(f"`names` must be tools of the server, got {missing[0]!r}; there are {', '.join(known)}.")
    return [
        Tool(
            name=name,
            schema={
                "type": "function",
                "function": {
                    "name": name,
                    "description": known[name].description or "",
                    "parameters": known[name].input_schema,
                },
            },
            call=partial(_call, loop, client, name),
        )
        for name in names or known
    ]


@cache
def _connect(command: tuple[str, ...] | None, url: str | None, seconds: float) -> tuple[Any, Any, list[Any]]:
    """Returns the event loop of a connection, which runs in a thread of its own, its client and the server's tools."""
    try:
        import mcp
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("Tools of MCP servers need mcp; try `pip install jaxagents[mcp]`.") from error
    server = url if command is None else mcp.StdioServerParameters(command=command[0], args=list(command[1:]))
    loop, ready = asyncio.new_event_loop(), Future()  # type: Any, Future[tuple[Any, list[Any]]]

    async def stay() -> None:
        try:
            async with mcp.Client(server) as client:
                page = await client.list_tools()
                found = [*page.tools]
                while page.next_cursor:
                    page = await client.list_tools(cursor=page.next_cursor)
                    found += page.tools
                ready.set_result((client, found))
                await asyncio.Event().wait()  # For as long as the process lives.
        except BaseException as error:
            if not ready.done():
                ready.set_exception(error)

    threading.Thread(target=loop.run_until_complete, args=(stay(),), name="mcp", daemon=True).start()
    where = url or " ".join(command or ())
    try:
        client, found = ready.result(seconds)
    except TimeoutError as error:
        raise ValueError(f"`seconds` must be enough to connect to {where}, got {seconds:g}.") from error
    except BaseException as error:
        raise ValueError(f"`command` or `url` must reach an MCP server, got {where}: {_reason(error)}.") from error
    return loop, client, found


def _call(loop: Any, client: Any, name: str, /, **arguments: Any) -> str:
    result = asyncio.run_coroutine_threadsafe(client.call_tool(name, arguments), loop).result()
    text = "\n".join(part.text if part.type == "text" else f"[{part.type}]" for part in result.content)
    if result.is_error:
        raise RuntimeError(text)
    return text


def _reason(error: BaseException) -> str:
    """Returns the innermost message of an error, which task groups wrap."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return " ".join(str(error).split()) or type(error).__name__
