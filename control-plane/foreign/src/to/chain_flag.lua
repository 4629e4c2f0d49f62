local function marked(headers)
  local retry, ends = (headers:get("baggage") or ""):match("damper%.retry=(%d+);until=(%d+)")
  return retry and os.time() * 1000 <= tonumber(ends) + 60000
end

function envoy_on_request(handle)
  local headers = handle:headers()
  if INBOUND then
    local attempt = tonumber(headers:get("x-envoy-attempt-count") or "1") or 1
    if (attempt > 1 or headers:get("damper-retry")) and not marked(headers) then
      local mark = string.format("damper.retry=1;until=%.0f", os.time() * 1000 + 60000)
      local baggage = headers:get("baggage")
      headers:replace("baggage", baggage and baggage ~= "" and mark .. "," .. baggage or mark)
    end
  elseif marked(headers) then
    headers:replace("x-envoy-max-retries", "0")
    headers:replace("damper-retry", "1")
  end
end
