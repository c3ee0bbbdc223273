"""The console over HTTP: sessions, pages of views, live changes, assets."""
