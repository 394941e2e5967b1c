"""HTTP/1.1 endpoints of the data path: asyncio protocols on llhttp (httptools)."""
