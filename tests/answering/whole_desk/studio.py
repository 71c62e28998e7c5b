"""A small desk of an architect: people with titles, reminders, hours, site minutes, a calendar, letters and mails."""

from email.message import EmailMessage
from pathlib import Path

_TEXTS = {
    "invoices/INV-2023-009.txt": """Teresa Kowal, Chartered Architect

Invoice INV-2023-009
Date: 2023-12-11
To: Wexbury Lido Trust

Amount due £3,744.00
Status: PAID on 2024-01-08
""",
    "invoices/INV-2024-001.txt": """Teresa Kowal, Chartered Architect

Invoice INV-2024-001
Date: 2024-01-31
To: Peter and Lucinda Harrow

Amount due £6,240.00
Status: PAID on 2024-04-15
""",
    "invoices/INV-2024-002.txt": """Teresa Kowal, Chartered Architect

Invoice INV-2024-002
Date: 2024-05-06
To: Ines Pemberton

Amount due £3,468.00
Status: UNPAID
""",
    "invoices/INV-2024-003.txt": """Teresa Kowal, Chartered Architect

Invoice INV-2024-003
Date: 2024-10-21
To: Ines Pemberton

Amount due £4,020.00
Status: UNPAID
""",
    "invoices/reminder INV-2024-002.txt": """21 August 2024

Dear Mrs Pemberton,
may I remind you of my invoice INV-2024-002 of 6 May over £3,468.00? It must have slipped through.
T. Kowal
""",
    "invoices/2024-08-22 Pemberton.txt": """22 August 2024

Dear Mrs Pemberton,
about the invoice that you asked for: the amount of 3,468.00 pounds is for the first application only.
T. Kowal
""",
    "invoices/2024-03-02 Bright Paper.txt": """Bright Paper Ltd
Order confirmation
Invoice number: follows, order 7731
2 March 2024

Total: £148.20
""",
    "offers/2024-01-22 Harrow barn.md": """Offer no. A-24-01: conversion of the barn at Nether Farm
Client: Peter and Lucinda Harrow

| Stage | What | Fee |
|---|---|---|
| 1 | Survey and sketch | £5,200 |
| 2 | Working drawings | £14,800 |

Total without VAT: £38,400. The offer stands for 60 days.
Interior furniture is not part of this offer.
""",
    "offers/2024-07-03 Pemberton attic.md": """Offer no. A-24-05: attic with outside stair
Client: Mrs Ines Pemberton

| Stage | What | Fee |
|---|---|---|
| 1 | New application | £3,350 |
| 2 | Working drawings | £5,600 |

Total without VAT: £12,150. The offer stands for 30 days.
""",
    "work/hours-2024.csv": """date,project,who,hours,task
2024-01-09,Nether Farm,Teresa,7.5,measuring the barn
2024-01-10,Nether Farm,Olek,6,measuring the barn
2024-02-14,Bethel Chapel,Teresa,3,bat people
2024-03-05,Nether Farm,Teresa,4,site meeting
2024-03-19,Nether Farm,Teresa,3.5,site meeting
2024-04-16,Nether Farm,Teresa,5,site meeting and sketching
2024-05-23,Quarry Bank,Olek,8,drawing the outside stair
2024-05-24,Quarry Bank,Olek,8,drawing the outside stair
""",
    "work/rates.csv": """who,Per hour,VAT number
Teresa,92,T1
Assistant,48,A1
"Draughtsman (freelance, Olek)",41,O1
""",
    "projects/nether-farm-barn/minutes-2024-03-19.md": """# Site minutes no. 2, Nether Farm, 19 March 2024

Present: Lucinda Harrow, Teresa Kowal, Ana Ruiz

- 2.1 Two rods are enough for the north wall; Ana hands in the calculation.
- 2.2 The electrician is late with his scheme.
""",
    "projects/nether-farm-barn/minutes-2024-04-16.md": """# Site minutes no. 3, Nether Farm, 16 April 2024

Present: Peter and Lucinda Harrow, Teresa Kowal, Sanjay Mistry (electrician)

- 3.1 The rods were put in on 11 April.
- 3.2 Windows: the owners choose the Danish ones of Velfac after all, not the ones of the joiner.
""",
    "projects/bethel-chapel/minutes-2024-06-11.md": """# Bethel Chapel, 11 June 2024

Present: Ana Sorley, Teresa Kowal

- The organ has left; they took it to pieces in two days.
- Sorley: The font must not be moved before the bishop has seen it.
""",
    "letters/2024-05-17 studio landlord.txt": """To: Castell Estates Ltd, attn. Mr Bryn Castell
17 May 2024

Studio at 11 Tanner's Row: damp in the rear wall

Dear Mr Castell,
This is the third time that I write to you about the damp. Unless a builder comes before 15 June, I shall keep back a
fifth of the rent.
Yours faithfully
Teresa Kowal
""",
    "letters/2024-06-28 from Castell.txt": """Castell Estates Ltd
28 June 2024

Dear Ms Kowal,
We apologise for the delay. Our contractor will look at the wall on 9 July.
Bryn Castell
""",
    "letters/2024-11-06 stove.txt": """Wexbury, 6 November 2024

Dear Peter,
the stove arrives on 19 December. Please clear the drive.
Teresa
""",
    "studio lease.txt": """Lease of the studio

Between Castell Estates Ltd (landlord) and Teresa Kowal (tenant), made on 1 April 2017.
The monthly rent is £1,180.
""",
    "calendar.ics": """BEGIN:VCALENDAR
VERSION:2.0
PRODID:-//Kowal//EN
BEGIN:VEVENT
UID:1@k
DTSTART:20241128T140000
DTEND:20241128T150000
SUMMARY:Dentist Dr Pascoe
LOCATION:4 Abbey Street
END:VEVENT
BEGIN:VEVENT
UID:2@k
DTSTART:20241203T183000
DTEND:20241203T200000
SUMMARY:Evening class: watercolour
RRULE:FREQ=WEEKLY;COUNT=8
END:VEVENT
BEGIN:VEVENT
UID:4@k
DTSTART:20241125T080000
DTEND:20241125T090000
SUMMARY:Fitter at Nether Farm\\, new pane W1
END:VEVENT
END:VCALENDAR
""",
}
_MAILS = (
    ("opening", "Fenella Groat", "6 Nov 2023", "Opening day",
     "Dear Teresa, we open on 25 November with a swim for the brave. The mayor will come."),
    ("truss", "Ana Ruiz", "3 May 2024", "Nether Farm: truss",
     "The post needs a pad of 90 by 90 cm. Could you change drawing 204 before Tuesday?"),
    ("stair", "Ana Ruiz", "21 May 2024", "Quarry Bank stair",
     "The outside stair needs two posts of galvanised steel. I am in Seville from 1 to 16 June."),
    ("account", "Ana Ruiz", "19 Jun 2024", "My account", "Here is my account for Nether Farm: 640 for the note."),
    ("shutter", "Fenella Groat", "12 Sep 2024", "Re: shutter",
     "Dear Teresa, the shutter fell on Sunday. Nobody was hurt, but we have closed the kiosk.\n\n"
     "> On 9 Sep 2024 Teresa wrote:\n> Did Brackley turn up last week as they said?"),
    ("organ", "Ana Sorley", "27 May 2024", "The organ",
     "Dear Teresa, the organ has gone to a parish in Kaunas. They sang when it left."),
)  # fmt: skip


def write_desk(desk: Path) -> Path:
    """Write the desk into a folder that is not there yet."""
    for name, text in _TEXTS.items():
        path = desk / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    (desk / "mails").mkdir()
    for name, sender, day, subject, text in _MAILS:
        mail = EmailMessage()
        mail["From"] = f"{sender} <{sender.split()[0].lower()}@example.org>"
        mail["To"] = "Teresa Kowal <teresa@example.org>"
        mail["Subject"], mail["Date"] = subject, f"{day} 08:30:00 +0000"
        mail.set_content(text)
        (desk / "mails" / f"{name}.eml").write_bytes(bytes(mail))
    return desk
