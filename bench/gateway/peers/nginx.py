"""nginx as a plain proxy: what one core can forward at all."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from bench.gateway.targets import Launch, Place

CONFIGURATION = """\
{user}daemon off; worker_processes 1; error_log {folder}/nginx.err; pid {folder}/nginx.pid;
events {{ worker_connections 8192; }}
http {{
  access_log off; keepalive_requests 100000000;
  client_body_temp_path {folder}/b; proxy_temp_path {folder}/p; fastcgi_temp_path {folder}/f;
  uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  upstream mock {{ server {upstream}; keepalive 512; keepalive_requests 100000000; }}
  server {{
    listen 127.0.0.1:{port} backlog=2048; tcp_nodelay on;
    client_max_body_size 64m; client_body_buffer_size 1m;
    location / {{
      proxy_pass http://mock; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_buffering off;
    }}
  }}
}}
"""


def preparer(path: Path) -> Callable[[Place], Launch]:
    """How nginx is started.

    Args:
        path: Its program.
    """

    def prepare(place: Place) -> Launch:
        file = place.folder / "nginx.conf"
        file.write_text(
            CONFIGURATION.format(
                # Started by root, it would give its worker to a user who cannot write here.
                user="user root;\n" if os.geteuid() == 0 else "",
                folder=place.folder,
                port=place.port,
                upstream=place.mock_url.removeprefix("http://"),
            )
        )
        return Launch(command=(str(path), "-c", str(file), "-p", str(place.folder)))

    return prepare
