"""Tools of an MCP server that speaks on its standard streams."""

import sys

import pytest

from jaxagents.language.chat_world import make_environment
from jaxagents.language.mcp_tools import mcp_tools
from jaxagents.language.tool_calls import run_calls
from jaxagents.language.tool_format import Call

pytest.importorskip("mcp", reason="needs the extra mcp")

SERVER = """
from mcp.server import MCPServer
from mcp.types import ImageContent, TextContent

server = MCPServer("towns")

@server.tool()
def look_up(name: str) -> str:
    "Looks up where somebody lives."
    return {"Ada": "Bern"}[name]

@server.tool()
def draw(name: str) -> list[TextContent | ImageContent]:
    "Draws a map."
    return [TextContent(type="text", text=name), ImageContent(type="image", data="", mimeType="image/png")]

server.run()
"""


@pytest.fixture(scope="module")
def command(tmp_path_factory):
    path = tmp_path_factory.mktemp("server") / "server.py"
    path.write_text(SERVER)
    return [sys.executable, str(path)]


def test_tools_of_a_server_are_called_side_by_side(command):
    tools = {tool.name: tool for tool in mcp_tools(command=command)}
    function = tools["look_up"].schema["function"]
    assert function["description"] == "Looks up where somebody lives."
    assert function["parameters"]["required"] == ["name"] and list(tools) == ["look_up", "draw"]
    calls = [Call("look_up", {"name": "Ada"}), Call("look_up", {"name": "Bo"}), Call("draw", {"name": "map"})]
    texts = [result.text for result in run_calls(tools, [*calls, Call("look_up", {})], seconds=20.0)]
    assert texts[0] == "Bern" and texts[2] == "map\n[image]"
    assert texts[1].startswith("Error: look_up failed with RuntimeError: ") and "Error: look_up failed" in texts[3]


def test_a_server_among_the_tools_of_a_world_counts_as_its_tools(command):
    rows = [{"prompt": "Where?", "answer": "Bern"}] * 4
    world = make_environment(rows=rows, tools=[mcp_tools(command=command, names=["look_up"])])
    assert [*world.host.tools] == ["look_up"] and world.max_steps == 4


def test_servers_that_are_not_there_are_refused(command):
    with pytest.raises(ValueError, match="`names` must be tools of the server, got 'find'; there are look_up, draw"):
        mcp_tools(command=command, names=["find"])
    with pytest.raises(ValueError, match="`command` or `url` must be given, got None and None"):
        mcp_tools()
    with pytest.raises(ValueError, match="must reach an MCP server, got no_such_program: .*no_such_program"):
        mcp_tools(command=["no_such_program"])
    with pytest.raises(ValueError, match="`command` or `url` must reach an MCP server, got http://127.0.0.1:9/mcp"):
        mcp_tools(url="http://127.0.0.1:9/mcp")
    with pytest.raises(ValueError, match="`seconds` must be enough to connect"):
        mcp_tools(command=[sys.executable, "-c", "import time; time.sleep(30)"], seconds=0.5)
