"""Export of models to formats of other inference engines: CTranslate2 and ONNX."""
