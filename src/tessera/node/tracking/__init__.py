"""Metrics of jobs that do not call the in-job library: event files of TensorBoard, and MLflow.

``event_records`` decodes the records of event files, ``event_files`` finds the files below a run
and reads them as they grow. ``mlflow_api`` answers the calls of MLflow, ``http_server`` serves
them in the loop of a runner, and ``endpoint`` connects both with the job's network and reports.
``lines`` builds the lines of reports that both sources send.
"""
