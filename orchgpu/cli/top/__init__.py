"""The screen of `orchgpu top`: rows, the reads of the scheduler, widgets of Textual.

`rows`, `state` and `story` know no Textual; `table`, `dialogs` and `app` are imported only by the
command itself, because Textual is the extra `orchgpu[top]`.
"""
