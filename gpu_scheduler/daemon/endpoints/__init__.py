"""The two endpoints of ssgmd (JSON lines and HTTP): connections, requests, pushes."""
