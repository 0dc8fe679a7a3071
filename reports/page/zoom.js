// A timeline that can be zoomed: every column shows the exact shares of the bins under it, at any width.
(function () {
  "use strict";
  var units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  function unit(seconds) {
    return units.find(function (each) { return seconds >= 3 * each[1]; }) || units[3];
  }
  function text(seconds, as) {
    var chosen = as || unit(seconds);
    return Number((seconds / chosen[1]).toPrecision(4)) + " " + chosen[0];
  }
  function start(box) {
    var data = JSON.parse(box.querySelector("script").textContent);
    var raw = atob(data.shares), bins = data.bins, states = data.colours.length, rows = data.names.length;
    var shares = new Uint8Array(raw.length);
    for (var i = 0; i < raw.length; i++) { shares[i] = raw.charCodeAt(i); }
    var canvas = box.querySelector("canvas"), said = box.querySelector("output");
    var from = 0, to = bins, least = Math.min(60, bins), rowHeight = rows > 24 ? 14 : 24, left = 86;
    function draw() {
      var ratio = window.devicePixelRatio || 1, width = canvas.clientWidth, height = rows * rowHeight + 22;
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
      canvas.style.height = height + "px";
      var pen = canvas.getContext("2d"), ink = getComputedStyle(box).color, span = to - from;
      pen.setTransform(ratio, 0, 0, ratio, 0, 0);
      pen.clearRect(0, 0, width, height);
      pen.font = rowHeight < 24 ? "10px system-ui, sans-serif" : "12px system-ui, sans-serif";
      pen.textBaseline = "middle";
      var columns = Math.max(width - left, 1);
      for (var row = 0; row < rows; row++) {
        pen.fillStyle = ink;
        pen.textAlign = "right";
        pen.fillText(data.names[row], left - 6, row * rowHeight + rowHeight / 2 - 1);
        for (var x = 0; x < columns; x++) {
          var a = from + span * x / columns, b = from + span * (x + 1) / columns, y = row * rowHeight;
          for (var state = 0; state < states; state++) {
            var base = (row * states + state) * bins, sum = 0;
            for (var k = Math.floor(a); k < b && k < bins; k++) {
              sum += shares[base + k] * (Math.min(b, k + 1) - Math.max(a, k));
            }
            var tall = (rowHeight - (rowHeight < 24 ? 2 : 4)) * sum / (b - a) / 255;
            if (tall > 0.02) {
              pen.fillStyle = data.colours[state];
              pen.fillRect(left + x, y, 1.02, tall);
              y += tall;
            }
          }
        }
      }
      pen.fillStyle = ink;
      var marks = Math.max(2, Math.min(6, Math.floor(columns / 110)));
      for (var m = 0; m <= marks; m++) {
        pen.textAlign = m === 0 ? "left" : m === marks ? "right" : "center";
        pen.fillText(text(data.end * (from + span * m / marks) / bins, unit(data.end * to / bins)), left + columns * m / marks, height - 9);
      }
      said.textContent = text(data.end * from / bins, unit(data.end * to / bins)) + " to " +
        text(data.end * to / bins) + "; one bin is " +
        text(data.end / bins);
    }
    function show(middle, span) {
      span = Math.max(least, Math.min(bins, span));
      from = Math.max(0, Math.min(bins - span, middle - span / 2));
      to = from + span;
      draw();
    }
    var act = {
      "in": function () { show((from + to) / 2, (to - from) / 2); },
      "out": function () { show((from + to) / 2, (to - from) * 2); },
      "left": function () { show((from + to) / 2 - (to - from) / 3, to - from); },
      "right": function () { show((from + to) / 2 + (to - from) / 3, to - from); },
      "all": function () { show(bins / 2, bins); }
    };
    var keys = { "+": "in", "=": "in", "-": "out", "ArrowLeft": "left", "ArrowRight": "right", "0": "all" };
    box.querySelectorAll("button").forEach(function (button) {
      button.addEventListener("click", function () { act[button.dataset.do](); });
    });
    canvas.addEventListener("keydown", function (event) {
      if (keys[event.key] && !event.ctrlKey && !event.metaKey) { event.preventDefault(); act[keys[event.key]](); }
    });
    var held = null;
    canvas.addEventListener("pointerdown", function (event) {
      held = { x: event.clientX, middle: (from + to) / 2 };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", function (event) {
      if (held) { show(held.middle - (event.clientX - held.x) * (to - from) / canvas.clientWidth, to - from); }
    });
    canvas.addEventListener("pointerup", function () { held = null; });
    canvas.addEventListener("wheel", function (event) {
      if (event.ctrlKey) { event.preventDefault(); act[event.deltaY < 0 ? "in" : "out"](); }
    }, { passive: false });
    box.hidden = false;
    draw();
    window.addEventListener("resize", draw);
    window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  }
  document.querySelectorAll(".zoom").forEach(start);
})();
