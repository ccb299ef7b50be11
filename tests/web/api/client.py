"""The API asked in this process, without a server."""

import os
from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

from standfast import Store
from standfast.web.app import make_app

PORT = 7433
HERE = f"http://127.0.0.1:{PORT}"


class Api:
    """A dashboard in this process."""

    def __init__(self, store: Store | Path, **options: Any) -> None:
        opened = Store(store) if isinstance(store, os.PathLike) else store
        self.client = TestClient(make_app(opened, **options), base_url=HERE)

    def __call__(self, path: str, status: int = 200) -> Any:
        """What `/api/v1{path}` answers."""
        answer = self.client.get(f"/api/v1{path}")
        assert answer.status_code == status, answer.text
        return answer.json()

    def send(self, path: str, body: Any = None, status: int = 200, method: str = "POST") -> Any:
        """What is answered to a change of the dashboard's own pages."""
        headers = {"X-Standfast": "1", "Origin": HERE, "Sec-Fetch-Site": "same-origin"}
        answer = self.client.request(method, f"/api/v1{path}", json=body, headers=headers)
        assert answer.status_code == status, answer.text
        return answer.json()
