"""Every section of the schema, by one name to import from."""

from inferencemesh.config.backends import Backend, BackendTls, Breaker, Drain, Health
from inferencemesh.config.listeners import Admin, Cors, Server, ServerLimits, ServerTls
from inferencemesh.config.model import Mesh, Model
from inferencemesh.config.policies import Adaptive, Admission, Fairness, Queue, Retries, Stream, Timeouts
from inferencemesh.config.section import Section
from inferencemesh.config.service import Coordination, Log, Otlp, Partition, Telemetry
from inferencemesh.config.tenancy import Key, PriorityClass, Rate, Tenant

__all__ = [
    "Adaptive",
    "Admin",
    "Admission",
    "Backend",
    "BackendTls",
    "Breaker",
    "Coordination",
    "Cors",
    "Drain",
    "Fairness",
    "Health",
    "Key",
    "Log",
    "Mesh",
    "Model",
    "Otlp",
    "Partition",
    "PriorityClass",
    "Queue",
    "Rate",
    "Retries",
    "Section",
    "Server",
    "ServerLimits",
    "ServerTls",
    "Stream",
    "Telemetry",
    "Tenant",
    "Timeouts",
]
