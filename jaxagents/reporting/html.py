"""HTML pages from the templates beside this file; each is one self-contained file."""

from functools import cache
from pathlib import Path
from typing import Any

from jaxagents.data.files import write_whole

_DARKEST = 4.0  # Nats of surprise at which the shade of a token is full.
_LARGEST = 2.0  # Advantage at which its colour is full: standardised advantages are rarely larger.


def write_page(path: str | Path, template: str, **values: Any) -> Path:
    """Renders a template with its values, all of which are escaped.

    Args:
        path: path of the file.
        template: name of a file in `templates/`.
        **values: values that the template names.

    Returns:
        Absolute path of the file.
    """
    path = Path(path).resolve()
    write_whole(path, _environment().get_template(template).render(**values))
    return path


def show_number(value: Any) -> str:
    """Returns a value as shown in tables: four significant digits, with a thousands separator."""
    if isinstance(value, bool) or value is None:
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1e5 else f"{value:,.0f}"
    if isinstance(value, list):
        return ", ".join(show_number(item) for item in value)
    return str(value)


def advantage_opacity(advantage: float) -> float:
    """Returns the opacity of an advantage's colour, from 0 for none to 0.6 for an absolute value of two or more."""
    return 0.6 * min(abs(advantage) / _LARGEST, 1.0)


def opacity(log_prob: float) -> float:
    """Returns the opacity of a token's shade, from 0 for a certain one to 0.85 for four nats of surprise or more."""
    return 0.85 * min(max(0.0, -log_prob / _DARKEST), 1.0)


@cache
def _environment() -> Any:
    import jinja2  # Imported only when a page is written, so that runs need not wait for it.

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"number": show_number, "opacity": opacity, "advantage_opacity": advantage_opacity}
    return environment
