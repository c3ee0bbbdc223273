"""Reading the text in an image with the models that the `rapidocr` package carries.

Plain functions and values; `remote_gpu.worker.operations.text_recognition` makes them an operation.
"""
