"""Values of the submit page that a browser posts."""

import json
import re
from typing import Any

from django.test import Client


def check_specification(client: Client, **posted: Any) -> dict[str, Any]:
    response = client.post("/submit/check/", posted, headers={"Accept": "application/json"})
    assert response.status_code == 200, response.content
    found: dict[str, Any] = json.loads(response.content)
    return found


def form_fields(client: Client, address: str = "/submit/") -> dict[str, str]:
    """Return all values that a browser without scripts would post."""
    text = client.get(address).content.decode()
    found: dict[str, str] = {}
    for tag in re.findall(r"<input[^>]*>", text):
        attrs = dict(re.findall(r'([\w-]+)="([^"]*)"', tag))
        ticked = attrs.get("type") not in {"radio", "checkbox"} or re.search(r"\schecked", tag)
        if "name" in attrs and ticked and attrs.get("type") not in {"file", "search"}:
            found[attrs["name"]] = unescape(attrs.get("value", ""))
    for name, body in re.findall(
        r'<textarea[^>]*name="([^"]+)"[^>]*>\n?(.*?)</textarea>', text, re.DOTALL
    ):
        found[name] = unescape(body)
    for name, body in re.findall(
        r'<select[^>]*name="([^"]+)"[^>]*>(.*?)</select>', text, re.DOTALL
    ):
        chosen = re.search(r'value="([^"]*)" selected', body)
        found[name] = chosen[1] if chosen else ""
    return found


def unescape(text: str) -> str:
    import html

    return html.unescape(text)
