-- Tables of rainbarrel.sqlite; every decision is one row

CREATE TABLE waterings (
    id          INTEGER PRIMARY KEY,
    decided_at  TEXT NOT NULL,               -- local time, ISO 8601
    bed         TEXT NOT NULL,
    litres      REAL NOT NULL CHECK (litres >= 0),
    moisture    REAL NOT NULL,
    reason      TEXT NOT NULL                -- 'dry', 'calibration' or 'by hand'
);

CREATE TABLE levels (
    measured_at TEXT PRIMARY KEY,
    litres      REAL NOT NULL,
    air_degrees REAL
);

CREATE INDEX waterings_by_bed ON waterings (bed, decided_at);

-- How much did each bed receive in a month?
CREATE VIEW litres_per_month AS
SELECT bed, substr(decided_at, 1, 7) AS month, sum(litres) AS litres
FROM waterings
GROUP BY bed, month;
