"""What a page has to be so that everybody can use it, looked at in a real browser.

Our own small checks in the manner of WCAG 2.2 AA: names of controls, labels, headings, landmarks,
tables, contrast as computed, focus; run on whatever is rendered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Page

_CHECK = r"""
() => {
  const faults = [];
  const say = (what, element) => {
    const shown = element ? element.outerHTML.replace(/\s+/g, " ").slice(0, 140) : "";
    faults.push(what + (shown ? ": " + shown : ""));
  };
  const all = selector => Array.from(document.querySelectorAll(selector));
  const isSeen = element => element.checkVisibility({ visibilityProperty: true, opacityProperty: true });
  const textOf = ids => ids.split(/\s+/).map(id => (document.getElementById(id) || {}).textContent || "").join(" ").trim();
  const nameOf = element => {
    const by = element.getAttribute("aria-labelledby");
    if (by) return textOf(by);
    const label = element.getAttribute("aria-label");
    if (label) return label.trim();
    if (element.labels && element.labels.length) return Array.from(element.labels, one => one.textContent).join(" ").trim();
    return element.matches("input, select, textarea") ? "" : element.textContent.trim();
  };

  if (document.documentElement.lang !== "en") say("the page names no language");
  if (!document.title.trim()) say("the page has no title");
  if (all("h1").length !== 1) say("the page has " + all("h1").length + " first headings");
  if (all("main").length !== 1) say("the page has " + all("main").length + " main parts");
  let level = 0;
  all("h1, h2, h3, h4, h5, h6").filter(isSeen).forEach(heading => {
    const next = Number(heading.tagName[1]);
    if (next > level + 1) say("a heading is left out before", heading);
    if (!heading.textContent.trim()) say("a heading is empty", heading);
    level = next;
  });
  ["nav", "[role=region]", "section", "form"].forEach(kind => {
    const names = all(kind).filter(isSeen).map(nameOfLandmark);
    if (kind === "nav" || kind === "[role=region]") names.forEach((name, at) => { if (!name) say("a landmark has no name", all(kind).filter(isSeen)[at]); });
  });
  function nameOfLandmark(element) {
    const by = element.getAttribute("aria-labelledby");
    return by ? textOf(by) : element.getAttribute("aria-label") || "";
  }
  const ids = new Set();
  all("[id]").forEach(element => { if (ids.has(element.id)) say("an id is there twice", element); ids.add(element.id); });
  all("[aria-labelledby], [aria-describedby]").forEach(element => {
    ["aria-labelledby", "aria-describedby"].forEach(name => {
      (element.getAttribute(name) || "").split(/\s+/).filter(Boolean).forEach(id => { if (!document.getElementById(id)) say(name + " names nothing", element); });
    });
  });
  all("label[for]").forEach(label => { if (!document.getElementById(label.htmlFor)) say("a label is of nothing", label); });
  all("a[href], button, summary, input:not([type=hidden]), select, textarea").filter(isSeen).forEach(control => {
    if (!nameOf(control)) say("a control has no name", control);
  });
  all("[tabindex]").forEach(element => { if (Number(element.getAttribute("tabindex")) > 0) say("the order of focus is forced", element); });
  all("img:not([alt])").forEach(image => say("an image has no text", image));
  all("svg, canvas").forEach(drawing => {
    const hidden = drawing.closest("[aria-hidden=true]");
    const named = drawing.closest("[aria-labelledby], [aria-label]");
    if (!hidden && !named) say("a drawing has no name", drawing);
  });
  all("table").filter(table => !table.closest("figure")).forEach(table => {
    if (!table.caption || !table.caption.textContent.trim()) say("a table has no caption", table);
    table.querySelectorAll("th").forEach(cell => { if (!cell.getAttribute("scope")) say("a header has no scope", cell); });
    if (!table.querySelector("thead th")) say("a table has no headers", table);
  });
  all("figure.chart").forEach(figure => {
    const panel = figure.closest("section");
    if (!panel || !panel.querySelector("table, .hint")) say("a chart has no table", figure);
  });
  all("*").forEach(element => {
    const style = getComputedStyle(element);
    if (style.animationName !== "none") say("something moves", element);
    const scrolls = /auto|scroll/.test(style.overflowX) && element.scrollWidth > element.clientWidth + 1;
    if (scrolls && isSeen(element) && element.getAttribute("tabindex") !== "0" && !element.matches("input, textarea, select") && !element.querySelector("a[href], button")) say("what scrolls cannot be reached by keyboard", element);
    if (element.matches("button, .tile .figure, .bar a") && isSeen(element) && element.scrollWidth > element.clientWidth + 1 && style.overflowX === "hidden") say("a text is cut off", element);
  });

  const parse = text => {
    const parts = text.match(/[\d.]+/g).map(Number);
    return { rgb: parts.slice(0, 3), alpha: parts.length > 3 ? parts[3] : 1 };
  };
  const luminance = rgb => {
    const [r, g, b] = rgb.map(one => { const c = one / 255; return c <= 0.03928 ? c / 12.92 : Math.pow((c + 0.055) / 1.055, 2.4); });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const groundOf = element => {
    for (let at = element; at; at = at.parentElement) {
      const color = parse(getComputedStyle(at).backgroundColor);
      if (color.alpha === 1) return color.rgb;
    }
    return [255, 255, 255];
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const told = new Set();
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.textContent.trim() || told.has(element) || element.closest("script, style, option, .unseen") || !isSeen(element)) continue;
    told.add(element);
    const style = getComputedStyle(element);
    const [a, b] = [luminance(parse(style.color).rgb), luminance(groundOf(element))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    const size = parseFloat(style.fontSize);
    const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    if (ratio < (large ? 3 : 4.5)) say("contrast " + ratio.toFixed(2), element);
  }
  return faults;
}
"""

_FOCUSED = r"""
() => {
  const element = document.activeElement;
  if (!element || element === document.body) return null;
  const style = getComputedStyle(element);
  const box = element.getBoundingClientRect();
  const all = Array.from(document.querySelectorAll("*"));
  return {
    place: all.indexOf(element),
    html: element.outerHTML.replace(/\s+/g, " ").slice(0, 120),
    visible: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2,
    inside: box.right > 0 && box.left < innerWidth && box.bottom > 0 && box.top < innerHeight
  };
}
"""


def faults_of(page: Page) -> list[str]:
    """Everything that is wrong with what is on the screen, in sentences."""
    return page.evaluate(_CHECK)


def width_of(page: Page) -> int:
    """How wide the page is; wider than the window means that it scrolls sideways."""
    return page.evaluate("document.documentElement.scrollWidth")


def walk(page: Page, *, stops_max: int = 400) -> list[str]:
    """Go through a page with the Tab key; what is wrong with the way.

    Returns:
        Sentences: a stop that cannot be seen, or that lies before the stop before.
    """
    faults: list[str] = []
    page.evaluate("document.activeElement && document.activeElement.blur(); scrollTo(0, 0)")
    last, count, html = -1, 0, ""
    for _ in range(stops_max):
        page.keyboard.press("Tab")
        at = page.evaluate(_FOCUSED)
        if at is None:
            break
        if at["place"] == last:
            continue  # a control with several stops, such as a date
        if at["place"] < last:
            break  # around once
        last, count, html = at["place"], count + 1, at["html"]
        if not at["visible"]:
            faults.append(f"the focus cannot be seen: {at['html']}")
        if not at["inside"]:
            faults.append(f"the focus is out of sight: {at['html']}")
    stops = page.evaluate(
        """() => Array.from(document.querySelectorAll(
            "a[href], button, summary, input:not([type=hidden]), select, textarea, [tabindex='0']"
        )).filter(one => one.checkVisibility() && !one.disabled && one.tabIndex >= 0).length"""
    )
    if count < min(stops, stops_max):
        faults.append(f"{count} of {stops} controls were reached, the last: {html}")
    return faults
