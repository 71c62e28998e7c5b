"""Calibration texts and questions of the quality gate and the drift probe; changing them reruns every gate.

Each group is stitched as one context and asked its question. One chunk of every group contains a code that the question
asks for, so that a coding that blurs keys shows as a failed lookup and not only as a small divergence.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CalibrationGroup:
    """Four chunks that are stitched together, a question, and the text that its answer must contain."""

    chunks: tuple[str, str, str, str]
    question: str
    needle: str


PROBE = (
    "The lighthouse at Cape Orrin was built in 1871 from granite that came by barge from the quarry "
    "at Telland. Its keeper wrote down the wind, the sea and every passing ship three times a day, "
    "and the ledgers survived him. The lamp burned rape oil until 1904, paraffin until 1937 and has "
    "been electric ever since."
)
"""Text of the drift probe; its unquantized KV is stored per model and compared at every start."""

GROUPS: tuple[CalibrationGroup, ...] = (
    CalibrationGroup(
        chunks=(
            "Minutes of the garden club, 4 March\n"
            "Eleven members were present and the treasurer was excused. The club agreed to order two "
            "tonnes of compost and to repair the east gate before Easter. The key code of the tool "
            "shed is 58213. Mrs Adeyemi will look after the seed bank until the autumn. The next "
            "meeting is in the library.",
            "Minutes of the garden club, 8 April\n"
            "Nine members were present. The compost came a week late and was wet, so half of the "
            "price was returned. The east gate was repaired by the Lund brothers for 140 euros. A "
            "letter from the council asks for the hedge along the canal to be cut below two metres by "
            "the end of May.",
            "Watering plan\n"
            "The beds by the wall are watered on Monday and Thursday, the greenhouse every evening. "
            "Whoever waters last closes the main tap and notes the meter in the blue book. In July "
            "the pump may run only between six and eight in the morning because the neighbours "
            "complained about the noise.",
            "Seed bank\n"
            "The drawers are sorted by month of sowing. Beans and peas are kept dry with rice in the "
            "box, tomatoes in paper bags with the year of harvest. Seeds older than four years go to "
            "the school garden. The register lists 212 kinds, of which thirty were given by members "
            "last year.",
        ),
        question="What is the key code of the tool shed?",
        needle="58213",
    ),
    CalibrationGroup(
        chunks=(
            "Boiler log\n"
            "The technician came on 12 November and replaced the expansion vessel and the ignition "
            "cable. The pressure was set to 1.6 bar. He recommends a new circulation pump within two "
            "years. The invoice number is KT-40417 and the sum is 386 euros, to be paid within "
            "fourteen days.",
            "House insurance\n"
            "The policy covers fire, storm and burst pipes up to 240,000 euros. Damage must be "
            "reported within three working days. Bicycles are covered if they were locked. The yearly "
            "premium is due on 1 February and is taken from the joint account.",
            "Roof repair\n"
            "The storm of January lifted nineteen tiles on the north side. The roofer closed the gap "
            "with a sheet the same day and laid new tiles in March. He found that two rafters near "
            "the chimney are damp and should be looked at again after the summer.",
            "Electricity meter\n"
            "The old meter was taken out on 3 June at 41,907 kilowatt hours. The new one sends its "
            "reading by radio once a day. The display shows power in watts when the button is pressed "
            "twice. Questions go to the grid company, not to the supplier.",
        ),
        question="What is the invoice number of the boiler technician?",
        needle="KT-40417",
    ),
    CalibrationGroup(
        chunks=(
            "Trip to the north\n"
            "The ferry leaves Harwick at 7.40 and takes five hours. Cabins are on deck four and the "
            "dog must stay in the car. The booking reference is QX7719. Breakfast is included. On "
            "arrival turn left after the customs hall and follow the signs to the coast road.",
            "Packing list\n"
            "Rain jackets, two pairs of boots, the stove and four gas cans, the blue tent with the "
            "short poles, the medicine box, a rope of twenty metres and the paper maps, because there "
            "is no signal beyond the second pass. The children carry their own sleeping bags.",
            "Mountain hut\n"
            "The hut at Senn lake sleeps fourteen and has no electricity. The warden lives in the "
            "valley and opens it in June. Firewood is in the lower shed and must be replaced. Water "
            "comes from the spring behind the house and should be boiled in August.",
            "Costs of the trip\n"
            "The ferry was 412 euros both ways, fuel came to 187 euros, the hut cost 18 euros a night "
            "and person, food about 260 euros. Anna paid for the ferry and Jonas for everything else. "
            "They will settle it when the photographs are shown in October.",
        ),
        question="What is the booking reference of the ferry?",
        needle="QX7719",
    ),
    CalibrationGroup(
        chunks=(
            "Release notes 2.4\n"
            "The importer now reads files larger than four gigabytes. Sorting by date no longer loses "
            "entries without a year. The default port is 8471. The old command line switch for "
            "colours was removed after two versions of warnings. Settings are migrated at the first "
            "start.",
            "Backup procedure\n"
            "The nightly job copies the database to the second disk at two o'clock and keeps fourteen "
            "copies. On the first Sunday of the month the oldest copy is restored on the test machine "
            "and counted. Whoever does it signs the list in the kitchen.",
            "On call\n"
            "The phone goes from hand to hand on Monday at ten. An alarm that rings twice within an "
            "hour is written up the same day. Nobody changes the firewall at night. If the payment "
            "provider is down, put the banner on the page and wait; refunds run by themselves.",
            "New colleagues\n"
            "In the first week everybody reads the handbook and fixes one typo in it. Accounts are "
            "opened by the office, not by friends. The lunch on Wednesday is paid by the firm. "
            "Questions are never a nuisance, and the answer belongs into the handbook.",
        ),
        question="What is the default port in release 2.4?",
        needle="8471",
    ),
)
