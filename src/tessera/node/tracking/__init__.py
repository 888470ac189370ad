"""Metrics of jobs that do not call the in-job library: event files of TensorBoard, and MLflow.

``event_records`` decodes the records of event files, ``event_files`` finds the files below a run
and reads them as they grow. ``lines`` builds the lines of reports that both sources send.
"""
