"""The server as an application of gunicorn, which loads the model once and then forks its workers.

pip install gunicorn uvicorn-worker
CLASSIFY_MODEL=runs/my-1 gunicorn --preload --worker-class uvicorn_worker.UvicornWorker --workers 2 \
    --bind 127.0.0.1:8000 --pythonpath configs/serve server:app

Where other machines can reach it, set CLASSIFY_TOKEN. Without --preload each worker loads the model itself: SIGHUP then
loads it again, and an exported model computes with several threads, which do not survive a fork.
"""

import os

from classify.prediction.predictor import load_classifier
from classify.serving.app import Served, make_app

MODEL, TOKEN = os.environ["CLASSIFY_MODEL"], os.environ.get("CLASSIFY_TOKEN") or None
app = make_app(Served(lambda: load_classifier(MODEL, use_cpu=True), wait=0.005), TOKEN)
