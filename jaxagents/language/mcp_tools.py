"""Tools of MCP servers (Model Context Protocol) for conversations; requires the extra `mcp`."""

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

    One connection serves all environments and conversations of this process, and lasts as long as the process.

    Args:
        command: command that starts a server on its standard streams, such as `[python, my_server.py]`.
        url: URL of a running server, by streamable HTTP; either this or `command`.
        names: names of the tools to use; None: all.
        seconds: time limit in seconds for connecting.

    Returns:
        The tools, with the server's descriptions and schemas. A call returns text; parts that are not text, such as
        images, are named in brackets. An error from the server makes the call fail.

    Raises:
        ValueError: neither or both of `command` and `url` are given, the connection fails, or the server lacks a name.

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
    """Returns the event loop of a connection, which runs in its own thread, its client, and the server's tools."""
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
                await asyncio.Event().wait()  # Waits as long as the process lives.
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
    """Returns the innermost message of an error that task groups have wrapped."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return " ".join(str(error).split()) or type(error).__name__
