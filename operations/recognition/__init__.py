"""Images: their decoding and scaling, the reading of text with the models of the package
`rapidocr`, and the outputs of given models.

The operations are `operations.plugins.text_recognition`, `image_classification` and `image_models`.
"""
