"""The settings with which the gateways are compared: the same behaviour in each one's own language."""

from __future__ import annotations

import hashlib
from pathlib import Path

from bench import messages

SLOTS = 4000  # more than any measurement holds open
KEYS = tuple(f"bench-key-{number}" for number in range(4))  # one a tenant; only the mesh looks at them


def nginx(port: int, backend: int, folder: Path) -> str:
    """nginx.conf: one worker, buffering off, a JSON access log that is written in blocks of 64 KiB."""
    return _NGINX.format(folder=folder, port=port, backend=backend)


_NGINX = """\
daemon off;
worker_processes 1;
pid {folder}/nginx.pid;
error_log {folder}/error.log warn;
worker_rlimit_nofile 20000;
events {{ worker_connections 16000; }}
http {{
  log_format line escape=json '{{"at":"$time_iso8601","id":"$request_id","method":"$request_method",'
    '"path":"$uri","status":$status,"bytes_out":$body_bytes_sent,"duration_s":$request_time,'
    '"backend":"$upstream_addr","first_s":"$upstream_header_time"}}';
  access_log {folder}/access.log line buffer=64k flush=1s;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  keepalive_timeout 620s;
  keepalive_requests 1000000000;
  tcp_nodelay on;
  upstream model {{
    server 127.0.0.1:{backend};
    keepalive 4096;
    keepalive_requests 1000000000;
    keepalive_timeout 620s;
  }}
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    client_max_body_size 32m;
    client_body_buffer_size 64k;
    location / {{
      proxy_pass http://model;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_set_header Host $host;
      proxy_buffering off;
      proxy_read_timeout 600s;
      proxy_send_timeout 600s;
    }}
  }}
}}
"""


def haproxy(port: int, backend: int) -> str:
    """haproxy.cfg: one thread, `http-no-delay`; the log goes to standard output, one write a line."""
    return _HAPROXY.format(port=port, backend=backend, line=_HAPROXY_LINE)


_HAPROXY_LINE = (
    '{"at":"%t","id":"%ID","method":"%HM","path":"%HP","status":%ST,"bytes_out":%B,"duration_ms":%Ta,'
    '"backend":"%s","first_ms":%Tr,"ending":"%tsc"}'
)
_HAPROXY = """\
global
  nbthread 1
  maxconn 8000
  log stdout len 1024 format raw local0 info
defaults
  mode http
  log global
  log-format '{line}'
  option http-no-delay
  option http-keep-alive
  http-reuse always
  unique-id-format %{{+X}}o\\ %ci:%cp_%Ts_%rt
  timeout connect 2s
  timeout client 600s
  timeout server 600s
  timeout http-keep-alive 620s
frontend public
  bind 127.0.0.1:{port} backlog 4096
  default_backend model
backend model
  server one 127.0.0.1:{backend} maxconn 8000 pool-max-conn 4096
"""


def envoy(port: int, backend: int, folder: Path) -> dict[str, object]:
    """Envoy's bootstrap: one listener, one cluster, limits out of the way, JSON access log."""
    types = "type.googleapis.com/envoy.extensions"
    line = {
        "at": "%START_TIME%",
        "id": "%REQ(X-REQUEST-ID)%",
        "method": "%REQ(:METHOD)%",
        "path": "%REQ(:PATH)%",
        "status": "%RESPONSE_CODE%",
        "flags": "%RESPONSE_FLAGS%",
        "bytes_out": "%BYTES_SENT%",
        "duration_ms": "%DURATION%",
        "backend": "%UPSTREAM_HOST%",
    }
    manager = {
        "@type": f"{types}.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "public",
        "codec_type": "HTTP1",
        "stream_idle_timeout": "600s",
        "common_http_protocol_options": {"idle_timeout": "620s"},
        "access_log": [
            {
                "name": "envoy.access_loggers.file",
                "typed_config": {
                    "@type": f"{types}.access_loggers.file.v3.FileAccessLog",
                    "path": str(folder / "access.log"),
                    "log_format": {"json_format": line},
                },
            }
        ],
        "route_config": {
            "virtual_hosts": [
                {
                    "name": "all",
                    "domains": ["*"],
                    "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "model", "timeout": "0s"}}],
                }
            ]
        },
        "http_filters": [
            {
                "name": "envoy.filters.http.router",
                "typed_config": {"@type": f"{types}.filters.http.router.v3.Router"},
            }
        ],
    }
    many = dict.fromkeys(("max_connections", "max_pending_requests", "max_requests"), 1_000_000)
    return {
        "static_resources": {
            "listeners": [
                {
                    "address": _address(port),
                    "tcp_backlog_size": 4096,
                    "filter_chains": [
                        {
                            "filters": [
                                {
                                    "name": "envoy.filters.network.http_connection_manager",
                                    "typed_config": manager,
                                }
                            ]
                        }
                    ],
                }
            ],
            "clusters": [
                {
                    "name": "model",
                    "connect_timeout": "2s",
                    "type": "STATIC",
                    "circuit_breakers": {"thresholds": [many]},
                    "load_assignment": {
                        "cluster_name": "model",
                        "endpoints": [{"lb_endpoints": [{"endpoint": {"address": _address(backend)}}]}],
                    },
                }
            ],
        }
    }


def _address(port: int) -> dict[str, object]:
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}


def mesh(port: int, admin_port: int, backend: int) -> dict[str, object]:
    """mesh.yaml as data: tenants with hashed keys, nobody anonymous, fair line, metrics, JSON log."""
    tenants = [
        {"name": f"tenant-{number}", "keys": [{"sha256": hashlib.sha256(key.encode()).hexdigest()}]}
        for number, key in enumerate(KEYS)
    ]
    return {
        "server": {"port": port},
        "admin": {"port": admin_port},
        "backends": [
            {
                "name": "fake",
                "url": f"http://127.0.0.1:{backend}",
                "engine": "openai",
                "slots": SLOTS,
            }
        ],
        "models": [{"name": messages.MODEL, "backends": ["fake"]}],
        "tenants": tenants,
        "anonymous": "deny",
        "telemetry": {"log": {"format": "json", "level": "info"}},
    }
