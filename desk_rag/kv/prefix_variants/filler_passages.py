"""Fixed passages that precede a chunk while it is prefilled for a later place in a context.

Changing a passage invalidates the chunk KV of every variant that uses it. The passages are about as long as a chunk, on
unrelated subjects, and name no person or fact that a question would ask for: only their length should matter.
"""

from __future__ import annotations

FILLER_PASSAGES: tuple[str, ...] = (
    "Baking bread\n"
    "A plain loaf needs flour, water, salt and yeast. The flour is mixed with most of the water and left to stand "
    "for half an hour, so that it takes up the water before the salt goes in. After that the dough is folded every "
    "twenty minutes until it holds its shape. It rises in a bowl under a cloth; in a cool kitchen this takes a "
    "whole night, in a warm one three hours. The oven should be as hot as it gets, with a tray of water below, "
    "because steam keeps the crust soft while the bread still grows. After the first quarter of an hour the tray is "
    "taken out and the heat turned down. A loaf is done when it sounds hollow from below. It should cool on a rack "
    "before it is cut, or the inside becomes sticky. What is left over keeps for about four days in a wooden box "
    "and longer when it is frozen in slices.",
    "Network switches\n"
    "A switch joins the computers of a building into one network. It learns which device is reached through which "
    "socket by looking at the sender of every frame that arrives, and it writes this into a table. When a frame is "
    "addressed to a device it knows, it goes out through that one socket; otherwise it goes out through all of "
    "them. Entries that were not used for some minutes are dropped. If two switches are joined by two cables by "
    "mistake, frames can go round without end, which is why a protocol between the switches turns one of the paths "
    "off until it is needed. Larger installations divide one switch into several logical networks, so that guests "
    "and machines do not see each other. For faults, the first thing to look at is the lamp beside the socket, the "
    "second is the counter of damaged frames, and the third is the cable itself.",
    "Pruning fruit trees\n"
    "Apple and pear trees are pruned in late winter, when hard frost is over and the buds are still closed. First "
    "all dead and diseased wood is taken away, then branches that cross or grow towards the middle. Light and air "
    "should reach every part of the crown. A cut is made just above a bud that points outwards and slopes a little, "
    "so that rain runs off. Thick limbs are sawn from below first; otherwise their weight tears the bark. Plums and "
    "cherries are better cut in summer after the harvest, since their wounds close more slowly. Young trees are "
    "trained for four or five years until a trunk and a few strong side branches stand. Whoever takes away too much "
    "at once gets many upright shoots in the next year and little fruit. Tools are cleaned between two trees, "
    "because some diseases travel on the blade.",
    "Terms of a lease\n"
    "The tenant pays the rent in advance, at the beginning of each month, together with a monthly sum for heating "
    "and water. The costs are settled once a year by what was really used; a surplus is paid back and a shortfall "
    "is paid within thirty days. Small repairs inside the flat are the tenant's affair, up to a limit that the "
    "contract names. Everything that belongs to the building, such as pipes, windows and the roof, is kept in order "
    "by the owner, who must be told of damage without delay. The flat may be let to others for a time only with "
    "consent in writing. Notice is given by letter; the period is three months and begins with the following month. "
    "At the end both parties walk through the rooms and sign a record. The deposit is returned with interest, less "
    "what is owed, when the last account has been made.",
    "How glaciers move\n"
    "Snow that does not melt in summer is pressed together by the snow of later years until it turns into ice. Once "
    "the layer is thick enough it begins to flow downhill under its own weight. Most glaciers slide over the ground "
    "on a thin film of water, and the ice inside them bends slowly as well. The middle moves faster than the edges, "
    "where rock holds it back, and this strain opens deep cracks. Stones that fall on the ice or freeze to its "
    "bottom are carried along; they scratch the rock below and are dropped as ridges where the ice ends. A glacier "
    "is in balance when as much snow is added above as melts below. If the summers grow warmer, its tongue "
    "retreats, though the ice keeps moving forward all the while. Old ridges far down in the valley show how large "
    "it once was.",
    "Keeping accounts\n"
    "In double entry every amount is written twice, once as coming from somewhere and once as going somewhere. The "
    "two sides must be equal at all times, and a difference shows that something was forgotten or turned round. "
    "Accounts are grouped into what a firm owns, what it owes, what it earns and what it spends. Receipts are "
    "numbered and filed by date. At the end of the month the bank's statement is compared line by line with the "
    "firm's own book; payments that are still on their way explain what is left. Machines lose a part of their "
    "value every year, and this part counts as a cost although no money moves. When the year ends, earnings and "
    "costs are closed into one account that shows the profit or the loss. The books are then kept for ten years, on "
    "paper or in a form that cannot be changed unseen.",
    "Learning the violin\n"
    "Beginners spend the first weeks on posture alone. The instrument rests on the collarbone and is held by the "
    "chin, so that the left hand is free to move. The bow is drawn straight, halfway between bridge and "
    "fingerboard, with the weight of the arm and not with pressure from the fingers. Open strings come first, then "
    "scales in one position. There are no frets, so the ear must tell whether a note is in tune; many teachers sing "
    "it before it is played. Twenty minutes every day do more than two hours on Sunday. New strings need some days "
    "until they hold their pitch. In a dry room the wood can crack, which a moist cloth in the case prevents. After "
    "about a year most pupils learn to shift the hand along the neck, and the slow trembling of a held note follows "
    "later.",
)
"""Variant r uses the first r passages, in this order."""
