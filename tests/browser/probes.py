"""Questions to a page that only the browser can answer; each is the body of a function that returns findings."""

# What the focused element is called.
NAME_OF_FOCUS = """
const focused = document.activeElement;
const label = focused.labels && focused.labels[0];
return ((label || focused).innerText || "").trim();
"""

# How the focused element looks with the focus and without it.
LOOKS_OF_FOCUS = """
const focused = document.activeElement;
const look = () => {
    const style = getComputedStyle(focused);
    const outline = style.outlineStyle === "none" ? "none" : `${style.outlineWidth} ${style.outlineColor}`;
    return [outline, style.boxShadow, style.borderColor, style.backgroundColor, style.textDecorationLine];
};
const focusedLook = look();
focused.blur();
const plainLook = look();
focused.focus({focusVisible: true});
return [focusedLook, plainLook];
"""

# Post a form as a script on the page would, with the page's own token; returns the status.
FORGED_POST = """
const form = new FormData();
for (const [name, value] of Object.entries(arguments[1])) form.append(name, value);
form.append("csrfmiddlewaretoken", document.querySelector("[name=csrfmiddlewaretoken]").value);
return fetch(arguments[0], {method: "POST", body: form, redirect: "manual"}).then(answer => answer.status);
"""

# By how much the page is wider than the window.
OVERFLOW = "return document.documentElement.scrollWidth - document.documentElement.clientWidth;"

# Whether a list is wider than its place on the page, so that it has to be scrolled there.
SCROLLED_LIST = """
return [...document.querySelectorAll(".results")].some(list => list.scrollWidth > list.clientWidth);
"""

# The titles of sections that are wider than their place on the page.
SCROLLED_SECTIONS = """
return [...document.querySelectorAll(".chainsched-section")]
    .filter(section => section.scrollWidth > section.clientWidth).map(section => section.querySelector("h2").innerText);
"""

# Inputs that are asked for something without a name.
UNLABELLED = """
const isNamed = input => (input.labels && input.labels.length)
    || input.getAttribute("aria-label") || input.getAttribute("aria-labelledby");
return [...document.querySelectorAll("input, select, textarea")]
    .filter(input => !["hidden", "submit", "button"].includes(input.type) && !isNamed(input))
    .map(input => input.outerHTML);
"""

# Buttons and links that say nothing.
NAMELESS = """
return [...document.querySelectorAll("#content a[href], #content button")]
    .filter(element => element.checkVisibility() && !(element.innerText ?? element.textContent).trim()
        && !element.getAttribute("aria-label") && !element.title && !element.querySelector("img[alt]:not([alt=''])"))
    .map(element => element.outerHTML);
"""

# Tables without a name, apart from the two that are Django's own.
UNNAMED_TABLES = """
const names = table => table.caption || table.getAttribute("aria-label")
    || document.getElementById(table.getAttribute("aria-labelledby"));
return [...document.querySelectorAll("table:not(#result_list, #change-history table)")]
    .filter(table => !names(table)).map(table => table.outerHTML.slice(0, 200));
"""

# Headings that stand more than one level below the one before.
SKIPPED_HEADINGS = """
const headings = [...document.querySelectorAll("h1, h2, h3, h4, h5, h6")].filter(heading => heading.checkVisibility());
const levels = headings.map(heading => Number(heading.tagName[1]));
const found = headings.filter((_, at) => levels[at] > (at ? levels[at - 1] : 0) + 1).map(heading => heading.innerText);
return levels.filter(level => level === 1).length === 1 ? found : [...found, `${levels} as levels`];
"""

# Ids that stand for more than one element, so that labels may name another.
REPEATED_IDS = """
const ids = [...document.querySelectorAll("[id]")].map(element => element.id);
return ids.filter((id, at) => ids.indexOf(id) !== at);
"""

# Texts with less contrast than asked for, each with its contrast: luminance as WCAG 2 defines it.
PALE = """
const [selector, least] = arguments;
const parse = colour => (colour.match(/[\\d.]+/g) || []).map(Number);
const over = (top, below) => {
    const alpha = top.length > 3 ? top[3] : 1;
    return [0, 1, 2].map(at => top[at] * alpha + below[at] * (1 - alpha));
};
const background = element => {
    const colour = parse(getComputedStyle(element).backgroundColor);
    const below = element.parentElement ? background(element.parentElement) : [255, 255, 255];
    return over(colour, below);
};
const luminance = colour => {
    const [r, g, b] = colour.map(part => part / 255).map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const contrast = element => {
    const ground = background(element);
    const [one, other] = [over(parse(getComputedStyle(element).color), ground), ground].map(luminance);
    return (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
};
const hasText = element => [...element.childNodes].some(node => node.nodeType === 3 && node.data.trim());
return [...document.querySelectorAll(selector)]
    .filter(element => element.checkVisibility() && hasText(element) && contrast(element) < least)
    .map(element => `${element.innerText.slice(0, 40)} (${element.className}): ${contrast(element).toFixed(2)}`);
"""

# What must hold for those who do not see the page, by what it is about.
STRUCTURE = {
    "inputs": UNLABELLED,
    "buttons and links": NAMELESS,
    "tables": UNNAMED_TABLES,
    "headings": SKIPPED_HEADINGS,
    "ids": REPEATED_IDS,
}
