"""A sequential recommendation model that learns MovieLens 100K: ``python -m gdpa.train``, or ``make train``.

It trains the same model with gdpa's functions, with softmax attention and with mean pooling, and compares them on later
events. ``--help`` lists the options. ``python -m gdpa.train.serve`` exports a trained model and scores a batch.
"""
