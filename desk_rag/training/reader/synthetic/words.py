"""The words that invented texts are made of: people, places, firms, months, things.

Knows lists only. Their order is part of what a seed means: adding a word changes every text that is drawn afterwards.
"""

from __future__ import annotations


def phrases(text: str) -> tuple[str, ...]:
    """The phrases between the bars of `text`."""
    return tuple(text.split("|"))


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


FIRST_NAMES = _words(
    "Amara Bjorn Chen Dalia Elif Farid Greta Hana Ivo Jonas Kofi Lena Mira Nadia Omar Priya Quinn Rosa Sven Tomas "
    "Uma Viktor Wren Ximena Yusuf Zara Alma Boris Carla Dmitri Esther Felix Gustav Helga Imran Judith Karim Lars Magda "
    "Noor Otto Petra Raul Selma Tariq Ursula Vera Walter Yara Zeno"
)
LAST_NAMES = _words(
    "Abbott Bergman Castillo Dvorak Eklund Farouk Grimaldi Haddad Ishikawa Jansen Kowalski Lindgren Moreau Nakamura "
    "Okafor Petrov Quiroga Rossi Schmidt Tanaka Ueda Vargas Whitfield Xu Yilmaz Zhang Archer Bianchi Cohen Delgado "
    "Engel Fontaine Gupta Hoffman Ibarra"
)
CITIES = _words(
    "Lisbon Oslo Kyoto Nairobi Quito Tallinn Lyon Porto Cusco Hanoi Riga Leeds Graz Turin Perth Busan Dakar Accra "
    "Malmo Ghent Boston Denver Austin Halifax Bergen Basel Krakow Seville Lima Tunis"
)
FIRMS = _words(
    "Northwind Acme Bluefin Cedar Delta Everest Falcon Granite Horizon Indigo Juniper Keystone Lumen Meridian Nimbus "
    "Orchid Pinnacle Quartz Redwood Summit Tundra Umbra Vertex Willow Zephyr"
)
PROJECTS = _words(
    "Falcon Aurora Beacon Cobalt Drift Ember Fjord Glacier Harbor Iris Jasper Krill Lagoon Mosaic Nectar Onyx Prism "
    "Quill Raven Saffron Tango Ultra Vortex Walnut Yonder"
)
MONTHS = _words("January February March April May June July August September October November December")
CURRENCIES = _words("euros crowns pounds francs dollars marks")
CURRENCY_SIGNS = ("$", "\u20ac", "\u00a3")
STREETS = phrases(
    "Mill Lane|Tanner's Row|Saddler Street|Harbour Road|Church Walk|Linden Avenue|Station Street|Quay Street|"
    "Orchard Close|Bakers Yard|North Parade|Canal Side|Hill Road|Castle Street"
)
THINGS = phrases(
    "boiler|bicycle|garage|flat|cottage|car|boat|printer|greenhouse|dishwasher|piano|tent|router|heat pump|"
    "washing machine|fridge|lawnmower|camera|caravan|workshop|allotment|storage unit|roof|chimney|fence|jetty|well|"
    "stove|pump|solar panel"
)
PLACE_NAMES = _words(
    "Raven Otter Falcon Birch Harrow Senn Thorn Ember Gull Wren Cold Long White Black High Stone Amber Salt Iron Moss"
)
PLACE_KINDS = _words("Saddle Peak Pass Lake Hut Bridge Tower Ridge Falls Beacon Cliff Island")
CODE_LETTERS = "ABCDEFGHJKLMNPQRSTUVWXYZ"
